package base_test

import (
	"path"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// A process that can write to a runtime's socket, or to /etc or /usr, controls
// the node.
func TestAgentSeesNoMoreOfTheHostThanItNeeds(t *testing.T) {
	for _, args := range [][]string{nil, {"--set", "devicePlugin.enabled=true,devicePlugin.cdi=true"}, {"--set", "stateDirs={/run/rail-cni,/run/other,/var/lib/rail-cni/third}"}} {
		var d struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							VolumeMounts []struct {
								Name, MountPath  string
								ReadOnly         bool `yaml:"readOnly"`
								MountPropagation string
							} `yaml:"volumeMounts"`
						}
						Volumes []struct {
							Name     string
							HostPath struct{ Path string } `yaml:"hostPath"`
						}
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(rendered(t, args...)["daemonset.yaml"]), &d); err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, v := range d.Spec.Template.Spec.Volumes {
			paths = append(paths, v.HostPath.Path)
		}
		if len(paths) != len(d.Spec.Template.Spec.Containers[0].VolumeMounts) {
			t.Errorf("%d volumes, %d mounts", len(paths), len(d.Spec.Template.Spec.Containers[0].VolumeMounts))
		}
		for _, p := range paths {
			for _, secret := range []string{
				"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket",
				"/var/lib/kubelet/pki", "/var/lib/kubelet/pods", "/var/lib/kubelet/config.yaml", "/etc/shadow", "/etc/kubernetes/admin.conf", "/root/.ssh", "/usr/bin/sh",
			} {
				if p == path.Clean(p) && strings.HasPrefix(secret+"/", strings.TrimSuffix(p, "/")+"/") {
					t.Errorf("%s is in %s", secret, p)
				}
			}
		}
	}
}

// The agent's pod has the directory of the NRI socket, and of another one only if a value
// says so.
func TestNRISocketIsSwitchable(t *testing.T) {
	for set, want := range map[string]struct{ argument, dir string }{
		"nri.enabled=true":             {"--nri-socket=/var/run/nri/nri.sock\n", "/var/run/nri"},
		"nri.socket=/run/other/a.sock": {"--nri-socket=/run/other/a.sock\n", "/run/other"},
		"nri.enabled=false":            {"--nri-socket=off\n", ""},
	} {
		text := rendered(t, "--set", set)["daemonset.yaml"]
		if !strings.Contains(text, want.argument) {
			t.Errorf("%s: no %q", set, want.argument)
		}
		if has := strings.Contains(text, "name: nri"); has != (want.dir != "") {
			t.Errorf("%s: there is a volume: %v", set, has)
		}
		if want.dir != "" && (!strings.Contains(text, "mountPath: "+want.dir+"\n") || !strings.Contains(text, "hostPath: {path: "+want.dir+",")) {
			t.Errorf("%s: %s is not mounted", set, want.dir)
		}
	}
}
