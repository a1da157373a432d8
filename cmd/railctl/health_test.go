package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/keeper"
)

const healthExamples = "../../examples/health"

// npdConfig is a configuration of node-problem-detector's custom plugin monitor, with the keys of
// pkg/custompluginmonitor/types of kubernetes/node-problem-detector.
type npdConfig struct {
	Plugin       string `json:"plugin"`
	PluginConfig struct {
		InvokeInterval string `json:"invoke_interval"`
		Timeout        string `json:"timeout"`
		MaxOutput      int    `json:"max_output_length"`
		Concurrency    int    `json:"concurrency"`
		MessageChanges bool   `json:"enable_message_change_based_condition_update"`
		SkipInitial    bool   `json:"skip_initial_status"`
	} `json:"pluginConfig"`
	Source     string `json:"source"`
	Metrics    bool   `json:"metricsReporting"`
	Conditions []struct {
		Type    string `json:"type"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"conditions"`
	Rules []struct {
		Type      string   `json:"type"`
		Condition string   `json:"condition"`
		Reason    string   `json:"reason"`
		Path      string   `json:"path"`
		Args      []string `json:"args"`
		Timeout   string   `json:"timeout"`
	} `json:"rules"`
}

// TestNodeProblemDetectorReadsTheDoctor checks the contract of node-problem-detector. Exit code 0
// means no problem, 1 means a problem, and any other code means unknown. The first
// max_output_length bytes of the output become the message of the condition. node-problem-detector
// itself does not run here, because the Go module proxy lacks its module.
func TestNodeProblemDetectorReadsTheDoctor(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(healthExamples, "node-problem-detector.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	var c npdConfig
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	duration := func(s string) time.Duration {
		t.Helper()
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Error(err)
		}
		return d
	}
	if c.Plugin != "custom" || len(c.Conditions) != 1 || len(c.Rules) != 1 || c.PluginConfig.MaxOutput < 80 {
		t.Fatalf("%+v", c)
	}
	rule := c.Rules[0]
	if rule.Type != "permanent" || rule.Condition != c.Conditions[0].Type || !filepath.IsAbs(rule.Path) || filepath.Base(rule.Path) != "railctl" {
		t.Errorf("%+v", rule)
	}
	if duration(rule.Timeout) > duration(c.PluginConfig.Timeout) || duration(c.PluginConfig.Timeout) > duration(c.PluginConfig.InvokeInterval) {
		t.Errorf("times: %+v, %s", c.PluginConfig, rule.Timeout)
	}
	if rule.Condition == keeper.ConditionType {
		t.Error("two programs would write the condition of rail-agent")
	}

	l := newLab(t)
	l.lend()
	message := func() (string, int) {
		t.Helper()
		began := time.Now()
		out, errOut, code := l.railctl(rule.Args...)
		if took := time.Since(began); took > duration(rule.Timeout) || errOut != "" || strings.Count(out, "\n") != 1 {
			t.Errorf("after %v: stderr %q, stdout %q", took, errOut, out)
		}
		out = strings.TrimSpace(out)
		return out[:min(len(out), c.PluginConfig.MaxOutput)], code
	}
	const problem = "POD-DOWN: pod default/web-0"
	if out, code := message(); strings.Contains(out, problem) || !slices.Contains([]int{doctor.ExitOK, doctor.ExitProblem}, code) {
		t.Errorf("of a sound pod: %d, %s", code, out)
	}
	l.wire.IP("link", "set", "ens12np0-sw", "down")
	if out, code := message(); !strings.Contains(out, problem) || code != doctor.ExitProblem {
		t.Errorf("of a pod whose rail has no carrier: %d, %s", code, out)
	}
}

// TestHealthExamplesReadTheConditionOfTheAgent checks that the other examples name the condition
// that the agent keeps.
func TestHealthExamplesReadTheConditionOfTheAgent(t *testing.T) {
	read := func(file string, to any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(healthExamples, file))
		if err != nil {
			t.Fatal(err)
		}
		d := yaml.NewDecoder(strings.NewReader(string(text)))
		d.KnownFields(true)
		if err := d.Decode(to); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	// NodeReadinessRule of api/v1alpha1 of kubernetes-sigs/node-readiness-controller.
	var rule struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Spec       struct {
			Conditions []struct {
				Type           string
				RequiredStatus string `yaml:"requiredStatus"`
			}
			Taint           struct{ Key, Effect string }
			EnforcementMode string `yaml:"enforcementMode"`
			NodeSelector    struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"nodeSelector"`
			DryRun bool `yaml:"dryRun"`
		}
	}
	read("node-readiness-rule.yaml", &rule)
	if s := rule.Spec; rule.APIVersion != "readiness.node.x-k8s.io/v1alpha1" || rule.Kind != "NodeReadinessRule" || len(s.Conditions) != 1 ||
		s.Conditions[0].Type != keeper.ConditionType || s.Conditions[0].RequiredStatus != "True" || s.EnforcementMode != "continuous" || len(s.NodeSelector.MatchLabels) == 0 {
		t.Errorf("%+v", rule)
	}
	// docs/configuration of NVIDIA/NVSentinel: policies of the Kubernetes Object Monitor.
	var values struct {
		Global struct {
			Monitor struct{ Enabled bool } `yaml:"kubernetesObjectMonitor"`
		}
		Monitor struct {
			Policies []struct {
				Name        string
				Enabled     bool
				Resource    struct{ Group, Version, Kind string }
				Predicate   struct{ Expression string }
				HealthEvent struct {
					ComponentClass    string `yaml:"componentClass"`
					IsFatal           bool   `yaml:"isFatal"`
					Message           string
					RecommendedAction string   `yaml:"recommendedAction"`
					ErrorCode         []string `yaml:"errorCode"`
				} `yaml:"healthEvent"`
			}
		} `yaml:"kubernetes-object-monitor"`
	}
	read("nvsentinel-values.yaml", &values)
	if p := values.Monitor.Policies; len(p) != 1 || p[0].Resource.Kind != "Node" || !strings.Contains(p[0].Predicate.Expression, `"`+keeper.ConditionType+`"`) || !p[0].Enabled {
		t.Errorf("%+v", values)
	}
}
