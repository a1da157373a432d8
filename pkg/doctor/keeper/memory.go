package keeper

import (
	"encoding/json"
	"errors"
	"io/fs"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// memoryFile is the file in the state directory that has the reported findings. With this file, an
// agent that starts again does not report them again, and it notices when they end.
const memoryFile = "doctor.json"

// memory is the content of the file: the reported findings of each rule.
type memory map[string]reportedRule

type reportedRule struct {
	Scope    rule.Scope        `json:"scope"`
	Fails    bool              `json:"fails"`
	Findings map[string]string `json:"findings"` // the text of each finding, by the finding's key
}

// remember reads the file once. Findings of rules that the agent no longer judges are dropped.
func (k *Keeper) remember(rules []rule.Rule) {
	if k.remembered || k.Collect.StateDir == "" {
		return
	}
	k.remembered = true
	reported := memory{}
	if err := k.inStateDir(func(d *statefile.Dir) error {
		text, err := d.Read(memoryFile)
		if err != nil {
			return err
		}
		return json.Unmarshal(text, &reported)
	}); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			k.Log.Warn("cannot read the list of problems already reported by the doctor", "file", memoryFile, "err", err)
		}
		return
	}
	for id, r := range reported {
		if !slices.ContainsFunc(rules, func(rule rule.Rule) bool { return rule.ID == id }) {
			continue
		}
		w := &watched{scope: r.Scope, fails: r.Fails, findings: map[string]*finding{}}
		for key, text := range r.Findings {
			w.findings[key] = &finding{text: text, reported: true}
		}
		k.rules[id] = w
	}
}

// memorize writes the reported findings to the file.
func (k *Keeper) memorize() {
	if k.Collect.StateDir == "" {
		return
	}
	reported := memory{}
	for id, w := range k.rules {
		r := reportedRule{Scope: w.scope, Fails: w.fails, Findings: map[string]string{}}
		for key, f := range w.findings {
			if f.reported {
				r.Findings[key] = f.text
			}
		}
		if len(r.Findings) > 0 {
			reported[id] = r
		}
	}
	text, err := json.Marshal(reported)
	if err == nil {
		err = k.inStateDir(func(d *statefile.Dir) error { return d.Write(memoryFile, text) })
	}
	if err != nil {
		k.Log.Warn("cannot write the list of problems already reported by the doctor", "file", memoryFile, "err", err)
	}
}

func (k *Keeper) inStateDir(do func(*statefile.Dir) error) error {
	dir, err := statefile.Open(k.Collect.StateDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir)
}
