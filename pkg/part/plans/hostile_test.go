package plans_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// answerTime is more than any call here needs, even on a busy machine, and less
// than the runtime's limit.
const answerTime = 60 * time.Second

// answered runs a call and fails the test if the plugin hangs, panics, or fails
// without an error in CNI's form. It returns the plugin's error, nil for none.
func (b *bench) answered(c testnet.Call) error {
	b.t.Helper()
	type answer struct {
		err error
		out []byte
	}
	done := make(chan answer, 1)
	go func() {
		out, err := b.node.Run(c)
		done <- answer{err, out}
	}()
	select {
	case a := <-done:
		var said *types.Error
		if a.err != nil && !errors.As(a.err, &said) {
			b.t.Errorf("%s %s of %.300s: no CNI error, but %.2000v", c.Plugin, c.Verb, c.Config, a.err)
		}
		if a.err != nil && len(a.out) > 64<<10 {
			b.t.Errorf("%s %s: an error of %d bytes", c.Plugin, c.Verb, len(a.out))
		}
		return a.err
	case <-time.After(answerTime):
		b.t.Fatalf("%s %s of %.300s hangs", c.Plugin, c.Verb, c.Config)
		return nil
	}
}

// canary is a tree that must not be changed.
type canary struct {
	t    *testing.T
	dir  string
	want string
}

func newCanary(t *testing.T) *canary {
	t.Helper()
	c := &canary{t: t, dir: filepath.Join(t.TempDir(), "canary")}
	for _, d := range []string{"attachments", "locks", "empty"} {
		if err := os.MkdirAll(filepath.Join(c.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"file", "attachments/c1@net1.json", "locks/rdma"} {
		if err := os.WriteFile(filepath.Join(c.dir, f), []byte("canary\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.want = c.state()
	return c
}

func (c *canary) state() string {
	c.t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Mode(), info.ModTime())
		if info.Mode().IsRegular() {
			b.Write(readFile(c.t, path))
		}
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
	return b.String()
}

func (c *canary) alive() {
	c.t.Helper()
	if d := testnet.Diff(c.want, c.state()); d != "" {
		c.t.Errorf("something outside of the state directory was touched:\n%s", d)
	}
}

// hostileWords are values that a NAD's author, a pod's name or a runtime may
// use in place of a word.
func hostileWords(outside string) map[string]string {
	return map[string]string{
		"climbs":       "../../../../../../../../.." + outside + "/file",
		"absolute":     outside + "/file",
		"a NUL":        "net\x00" + outside,
		"a newline":    "a\nb: c\r\n\x1b[2J",
		"a command":    "$(touch " + outside + "/pwned);`id`%s%n%!d",
		"long":         strings.Repeat("x", 1<<20),
		"many slashes": strings.Repeat("a/../", 10000) + "x",
		"two dots":     "..", "not UTF-8": "\xff\xfe\x80",
		"a device": "/dev/zero", "a huge number": "99999999999999999999999999",
	}
}

// nested returns {"a":{"b":…}} for a dotted key.
func nested(key string, value any) (string, any) {
	first, rest, more := strings.Cut(key, ".")
	if !more {
		return key, value
	}
	k, v := nested(rest, value)
	m := map[string]any{k: v}
	if first == "ipam" && k != "type" {
		m["type"] = "whereabouts"
	}
	return first, m
}

func TestHostileWordsInAConfigurationAreAnswered(t *testing.T) {
	t.Parallel()
	// Not "cniVersion" and "name", which the CNI library checks itself.
	common := []string{
		"type", "stateDir", "rdma", "gidTimeout", "runtimeConfig.CNIDeviceInfoFile", "ipam.type",
		"ipam.range", "ipam.gateway", "ipam.network_name", "ipam.log_file", "ipam.configuration_path", "ipam.node_slice_size", "prevResult.cniVersion",
	}
	for plugin, keys := range map[string][]string{
		"host-device": append([]string{"device", "hwaddr", "kernelpath", "pciBusID", "deviceID", "runtimeConfig.deviceID"}, common...),
		"macvlan":     append([]string{"master", "mode", "mac", "runtimeConfig.mac"}, common[:6]...),
		"rdma":        append([]string{"deviceID", "pciBusID"}, common[:5]...),
	} {
		t.Run(plugin, func(t *testing.T) {
			b, c := newBench(t), newCanary(t)
			before := b.node.State()
			b.node.MustRun(b.call("DEL", b.config(nil)))
			idle := len(b.stateFiles())
			for _, key := range keys {
				for _, word := range need.SampleMap(t, 2, hostileWords(c.dir)) {
					k, v := nested(key, word)
					base := b.config
					if plugin == "macvlan" {
						base = b.macvlanConfig
					}
					call := b.call("ADD", base(nil))
					call.Plugin, call.Config = plugin, base(map[string]any{"type": plugin, k: v})
					if plugin == "rdma" && key != "prevResult.cniVersion" {
						call.Config = base(map[string]any{"type": plugin, "prevResult": map[string]any{"cniVersion": "1.1.0"}, k: v})
					}
					_ = b.answered(call)
					_ = b.answered(call.With("DEL"))
					// If the word misled DEL, the same call without it ends
					// everything.
					call.Config = base(map[string]any{"type": plugin})
					if _, err := link.ByName(b.node.Netns, nicName); err != nil || len(b.stateFiles()) > idle {
						b.node.MustRun(call.With("DEL"))
					}
				}
			}
			b.untouched(before)
			c.alive()
		})
	}
}

func TestHostileEnvironmentIsAnswered(t *testing.T) {
	t.Parallel()
	b, c := newBench(t), newCanary(t)
	before := b.node.State()
	for what, word := range need.SampleMap(t, 2, hostileWords(c.dir)) {
		if strings.Contains(word, "\x00") {
			continue // the environment cannot contain it
		}
		if len(word) > 50<<10 {
			word = word[:50<<10] // the kernel's bound for one variable is 128 KiB
		}
		for name, set := range map[string]func(*testnet.Call){
			"container id":   func(c *testnet.Call) { c.ContainerID = word },
			"interface name": func(c *testnet.Call) { c.IfName = word },
			"netns":          func(c *testnet.Call) { c.Netns = word },
			"args":           func(c *testnet.Call) { c.Args = word },
			"pod":            func(c *testnet.Call) { c.Args = "K8S_POD_NAMESPACE=" + word + ";K8S_POD_NAME=" + word },
			"path":           func(c *testnet.Call) { c.Path = strings.Split(testnet.Bin(t), ":")[0] + ":" + word },
		} {
			for _, config := range []string{b.config(map[string]any{"ipam": localIPAM("10.7.0.0/24")}), b.macvlanConfig(nil)} {
				call := b.call("ADD", config)
				set(&call)
				err := b.answered(call)
				if delErr := b.answered(call.With("DEL")); err == nil && delErr != nil {
					t.Errorf("%s %s: what ADD took, DEL does not: %.300v", name, what, delErr)
				}
				if err == nil {
					b.untouched(before)
				}
				if t.Failed() {
					t.Fatalf("%s %s", name, what)
				}
			}
		}
	}
	b.untouched(before)
	c.alive()
}

func TestHostileDocumentsAreAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	valid := b.config(nil)
	in := func(key, value string) string {
		return strings.TrimSuffix(valid, "}") + fmt.Sprintf(",%q:%s}", key, value)
	}
	deep := func(n int, open, end string) string { return strings.Repeat(open, n) + strings.Repeat(end, n) }
	for name, doc := range need.SampleMap(t, 4, map[string]string{
		"nothing": "", "null": "null", "a list": "[]", "a string": `"x"`, "half": valid[:len(valid)/2], "two": valid + valid,
		"deep lists":   in("prevResult", deep(9990, "[", "]")),
		"too deep":     in("x", deep(100000, "[", "]")),
		"deep objects": in("ipam", deep(9990, `{"ipam":`, "}")[:9990*8]+"{}"+strings.Repeat("}", 9990)),
		"never closed": in("x", strings.Repeat("[", 1<<20)),
		"a key twice":  in("device", `"lo"`), "a key in another case": in("DEVICE", `"lo"`),
		"state twice":   in("stateDir", `"/proc/self"`),
		"types":         `{"cniVersion":1,"name":{},"type":[],"device":7}`,
		"negative":      in("mtu", "-1"),
		"minus 2^63":    in("mtu", "-9223372036854775808"),
		"beyond 2^64":   in("mtu", "18446744073709551617"),
		"1e400":         in("mtu", "1e400"),
		"many keys":     in("x", "{"+strings.TrimSuffix(strings.Repeat(`"k":0,`, 200000), ",")+"}"),
		"valid, 8 MB":   in("x", `"`+strings.Repeat("y", 8<<20)+`"`),
		"null members":  `{"cniVersion":"1.1.0","name":"n","type":"host-device","device":null,"ipam":null,"runtimeConfig":null,"allow":[null],"stateDir":null}`,
		"a result":      in("prevResult", `{"cniVersion":"1.1.0","interfaces":[null],"ips":[{"address":"x","interface":-1}]}`),
		"attachments":   in("cni.dev/valid-attachments", `[{"containerID":"../../x","ifname":"\u0000"},null]`),
		"not UTF-8":     in("x", "\"\xff\xfe\""),
		"a byte order":  "\xef\xbb\xbf" + valid,
		"many networks": in("dns", `{"nameservers":[`+strings.TrimSuffix(strings.Repeat(`"a",`, 100000), ",")+`]}`),
	}) {
		for _, plugin := range []string{"host-device", "macvlan", "rdma", "whereabouts"} {
			for _, verb := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL"} {
				call := b.call(verb, valid)
				call.Plugin, call.Config = plugin, doc
				if !strings.Contains(doc, b.state) {
					// A document that cannot name a state directory must not
					// make the test use the machine's.
					call.Config = strings.Replace(doc, "{", fmt.Sprintf(`{"stateDir":%q,`, b.state), 1)
					call.Config = strings.Replace(call.Config, ",}", "}", 1)
				}
				_ = b.answered(call)
			}
			b.node.MustRun(b.call("DEL", valid))
			if d := b.node.Settled(before); d != "" {
				t.Fatalf("%s, %s: the host is not as it was:\n%s", plugin, name, d)
			}
		}
	}
	b.untouched(before)
}

func TestHugeRangesAreAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	for name, ipam := range map[string]map[string]any{
		"all of IPv4": {"range": "0.0.0.0/0"}, "all of IPv6": {"range": "::/0"},
		"all but all":    {"range": "::/0", "exclude": []string{"::/1", "8000::/1"}},
		"many excluded":  {"range": "10.0.0.0/8", "exclude": slices.Repeat([]string{"10.0.0.0/9", "10.128.0.1/32"}, 5000)},
		"negative":       {"range": "10.0.0.0/-1"},
		"too long":       {"range": "10.0.0.0/33"},
		"backwards":      {"range": "10.0.0.0/8", "range_start": "10.255.0.0", "range_end": "10.0.0.1"},
		"bounds outside": {"range": "10.0.0.0/8", "range_start": "0.0.0.0", "range_end": "255.255.255.255"},
		"mixed":          {"range": "::ffff:10.0.0.0/100"},
		"a zone":         {"range": "fe80::%eth0/64"},
		"many ranges":    {"ipRanges": slices.Repeat([]map[string]any{{"range": "10.0.0.0/8"}}, 2000)},
		"slices":         {"range": "10.0.0.0/8", "node_slice_size": "-5"},
		"the last":       {"range": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124", "range_start": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"},
	} {
		ipam["type"], ipam["store"] = "whereabouts", "local"
		config := b.config(map[string]any{"ipam": ipam})
		began := time.Now()
		err := b.answered(b.call("ADD", config))
		timing.Check(t, "the ADD with "+name, time.Since(began), 2*time.Second)
		t.Logf("%s: %.150v", name, err)
		b.node.MustRun(b.call("DEL", config))
		b.untouched(before)
	}
}

// stateFiles lists all files below the state directory, relative to it.
func (b *bench) stateFiles() []string {
	b.t.Helper()
	var names []string
	err := filepath.WalkDir(b.state, func(path string, d fs.DirEntry, err error) error {
		if name, relErr := filepath.Rel(b.state, path); err == nil && relErr == nil && name != "." {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return names
}

// Not beside other tests: all of the process have the umask.
func TestStateIsForRootOnly(t *testing.T) {
	b := newBench(t)
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	const info = "/var/run/k8s.cni.cncf.io/devinfo/cni/test-modes-of-rail-cni"
	b.node.MustRun(b.call("ADD", b.config(map[string]any{"ipam": localIPAM("10.7.0.0/24"), "runtimeConfig": map[string]any{"CNIDeviceInfoFile": info}})))
	files := b.stateFiles()
	if len(files) < 8 {
		t.Errorf("only %v", files)
	}
	for _, name := range append(files, ".") {
		st, err := os.Lstat(filepath.Join(b.state, name))
		if err != nil {
			t.Fatal(err)
		}
		want := map[fs.FileMode]fs.FileMode{0: 0o600, fs.ModeDir: 0o700, fs.ModeSymlink: 0o777}[st.Mode().Type()]
		owner, ok := st.Sys().(*syscall.Stat_t)
		if st.Mode().Perm() != want || !ok || int(owner.Uid) != os.Geteuid() {
			t.Errorf("%s: %v", name, st.Mode())
		}
	}
	b.node.MustRun(b.call("DEL", b.config(nil)))
}

// If something else is in the place of a file or directory of the state, a DEL
// returns and changes nothing else. Once that is repaired, a DEL ends everything.
func TestPlantedInTheStateDirectory(t *testing.T) {
	t.Parallel()
	plants := map[string]func(path string, c *canary) error{
		"a link to a file":      func(p string, c *canary) error { return os.Symlink(c.dir+"/file", p) },
		"a link to a directory": func(p string, c *canary) error { return os.Symlink(c.dir, p) },
		"a link to nothing":     func(p string, c *canary) error { return os.Symlink(c.dir+"/new", p) },
		"a climbing link":       func(p string, c *canary) error { return os.Symlink("../../../../../../../../.."+c.dir+"/file", p) },
		"a FIFO":                func(p string, _ *canary) error { return syscall.Mkfifo(p, 0o600) },
		"a directory":           func(p string, _ *canary) error { return os.MkdirAll(filepath.Join(p, "in it"), 0o700) },
		"an empty file":         func(p string, _ *canary) error { return os.WriteFile(p, nil, 0o600) },
		"garbage":               func(p string, _ *canary) error { return os.WriteFile(p, []byte("{\"version\":1,\x00"), 0o600) },
		"a newer version":       func(p string, _ *canary) error { return os.WriteFile(p, []byte(`{"version":99,"loan":7}`), 0o600) },
		"nothing":               func(string, *canary) error { return nil },
	}
	probe := newBench(t)
	full := map[string]any{"ipam": localIPAM("10.7.0.0/24")}
	probe.node.MustRun(probe.call("ADD", probe.config(full)))
	names := append(probe.stateFiles(), "locks/attachment@c1@net1", "locks/rdma")
	probe.node.MustRun(probe.call("DEL", probe.config(full)))
	for what, plant := range plants {
		t.Run(what, func(t *testing.T) {
			b, c := newBench(t), newCanary(t)
			config := b.config(full)
			for _, name := range need.Sample(t, 2, names) {
				b.node.MustRun(b.call("ADD", config))
				path, aside := b.sameFile(name), filepath.Join(t.TempDir(), "aside")
				if err := os.Rename(path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				if err := plant(path, c); err != nil {
					t.Fatal(err)
				}
				err := b.answered(b.call("DEL", config))
				// Repaired: nothing may have been lost.
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(aside, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				b.node.MustRun(b.call("DEL", config))
				if t.Failed() {
					t.Fatalf("%s in the place of %s: %v", what, name, err)
				}
				b.fetch() // by its record alone it is returned
				if _, err := link.ByName(b.node.Netns, nicName); err != nil {
					t.Fatal(err)
				}
				if err := os.RemoveAll(b.state); err != nil {
					t.Fatal(err)
				}
				c.alive()
			}
		})
	}
}

// sameFile returns the path of the file in another bench's state: the marks and
// locks of NICs name the netns, which differs.
func (b *bench) sameFile(name string) string {
	dir, base := filepath.Split(name)
	if i := strings.Index(base, "net%3A%5B"); i >= 0 {
		if found, _ := filepath.Glob(filepath.Join(b.state, dir, "*"+nicName)); len(found) == 1 {
			return found[0]
		}
	}
	return filepath.Join(b.state, name)
}

func TestStateDirectoryThatOthersCanWriteIsRefused(t *testing.T) {
	t.Parallel()
	for _, sub := range []string{".", "attachments", "nics", "locks"} {
		b := newBench(t)
		before := b.node.State()
		b.node.MustRun(b.call("ADD", b.config(nil)))
		if err := os.Chmod(filepath.Join(b.state, sub), 0o777); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"ADD", "DEL", "GC", "STATUS", "CHECK"} {
			fails(t, b.answered(b.call(verb, b.config(nil))), cnierr.IO, "other users can write to the state directory", "chmod 0700")
		}
		if err := os.Chmod(filepath.Join(b.state, sub), 0o700); err != nil {
			t.Fatal(err)
		}
		b.node.MustRun(b.call("DEL", b.config(nil)))
		b.untouched(before)
	}
}

// A record that names the host as its pod is corrupt. Neither a DEL nor a sweep may treat
// the links of the host as links of the pod, or run the program that the record names.
func TestRecordThatNamesTheHostAsItsPodMovesNothing(t *testing.T) {
	t.Parallel()
	const other = "ens13np0"
	for _, verb := range []string{"DEL", "GC"} {
		t.Run("a NIC, "+verb, func(t *testing.T) {
			b := newBench(t)
			b.node.NIC(other, b.wire)
			before := b.node.State()
			b.node.MustRun(b.call("ADD", b.config(nil)))
			lent := b.node.State()
			dir, mark := spied(t)
			forge(t, b, func(r *ledger.Record) {
				r.Netns = r.HostNetns
				r.IPAM = &ledger.IPAM{Type: "spy", Path: dir, Config: []byte("{}")}
			})
			if verb == "GC" {
				_ = b.answered(gcAll(b.call("GC", b.config(nil))))
				if d := b.node.Settled(lent); d != "" {
					t.Errorf("the host was changed:\n%s", d)
				}
			}
			if err := b.answered(b.call("DEL", b.config(nil))); err != nil {
				t.Errorf("DEL: %v", err)
			}
			if _, err := os.Stat(mark); err == nil {
				t.Error("the program that the record names was run")
			}
			if aside, _ := filepath.Glob(b.recordPath() + ".corrupt-*"); len(aside) != 1 {
				t.Errorf("the record is not kept: %v", aside)
			}
			b.fetch()
			if d := onlyOf(other, b.node.Settled(before)); d != "" {
				t.Errorf("the other NIC was changed:\n%s", d)
			}
		})
	}
	t.Run("a macvlan of the host", func(t *testing.T) {
		b := newBench(t)
		b.node.IP("link", "add", "net1", "link", nicName, "type", "macvlan")
		b.node.MustRun(b.call("ADD", b.macvlanConfig(nil)))
		forge(t, b, func(r *ledger.Record) { r.Netns = r.HostNetns })
		if err := b.answered(b.call("DEL", b.macvlanConfig(nil))); err != nil {
			t.Errorf("DEL: %v", err)
		}
		if _, err := link.ByName(b.node.Netns, "net1"); err != nil {
			t.Errorf("the host's macvlan: %v", err)
		}
		if l, err := link.ByName(b.pod.Netns, "net1"); err == nil {
			t.Errorf("the pod still has %s", l.Name)
		}
	})
}

// onlyOf returns the lines of a difference about the link.
func onlyOf(name, diff string) string {
	var lines []string
	for line := range strings.Lines(diff) {
		if strings.Contains(line, name) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// While ADD and DEL run, files are swapped for links, FIFOs and directories.
// The plugins answer, and do not change anything outside.
func TestTamperingWhileTheyRun(t *testing.T) {
	t.Parallel()
	b, c := newBench(t), newCanary(t)
	config := b.config(map[string]any{"ipam": localIPAM("10.7.0.0/24")})
	b.node.MustRun(b.call("ADD", config))
	b.node.MustRun(b.call("DEL", config))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	swaps := 0
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(11, 12))
		for {
			select {
			case <-stop:
				return
			default:
			}
			var names []string
			_ = filepath.WalkDir(b.state, func(path string, _ fs.DirEntry, err error) error {
				if path != b.state && err == nil {
					names = append(names, path)
				}
				return nil
			})
			if len(names) == 0 {
				continue
			}
			path := names[rnd.IntN(len(names))]
			aside := filepath.Join(filepath.Dir(c.dir), "aside")
			if os.Rename(path, aside) != nil {
				continue
			}
			switch rnd.IntN(4) {
			case 0:
				_ = os.Symlink(c.dir+"/file", path)
			case 1:
				_ = os.Symlink(c.dir, path)
			case 2:
				_ = syscall.Mkfifo(path, 0o600)
			case 3:
				_ = os.Mkdir(path, 0o700)
			}
			time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
			_ = os.RemoveAll(path)
			_ = os.Rename(aside, path)
			_ = os.RemoveAll(aside)
			swaps++
		}
	})
	answers := map[uint]int{}
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline) && !t.Failed(); {
		for _, verb := range []string{"ADD", "GC", "DEL"} {
			err := b.answered(b.call(verb, config))
			code := uint(0)
			if err != nil {
				code = codeOf(err)
			}
			answers[code]++
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("%d swaps, answers by code: %v", swaps, answers)
	if swaps < 100 || answers[0] == 0 {
		t.Errorf("that was no test: %d swaps, answers %v", swaps, answers)
	}
	c.alive()
	_ = b.answered(b.call("DEL", config))
	b.node.MustRun(b.call("DEL", config))
	b.fetch() // its record may be lost
	if _, err := link.ByName(b.node.Netns, nicName); err != nil {
		t.Errorf("the NIC is not home: %v", err)
	}
}

// Version 1 is the only version so far. Its optional fields may be missing, and a
// record may have fields of a newer version.
func TestRecordWithoutOptionalFieldsBringsTheNICHome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	before := b.node.State()
	b.node.MustRun(b.call("ADD", b.config(nil)))
	var r map[string]any
	if err := json.Unmarshal(readFile(t, b.recordPath()), &r); err != nil {
		t.Fatal(err)
	}
	for _, optional := range []string{"pod", "bootID", "rdma", "mac", "mtu", "addresses", "deviceInfo", "ipam", "child"} {
		delete(r, optional)
	}
	loan, ok := r["loan"].(map[string]any)
	if !ok {
		t.Fatalf("loan: %v", r["loan"])
	}
	delete(loan, "podIndex")
	r["aKeyOfLater"] = map[string]any{"x": 1}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.recordPath(), data, 0o600); err != nil {
		t.Fatal(err)
	}
	b.node.MustRun(b.call("DEL", b.config(nil)))
	b.untouched(before)
}

// A pod on the same parent can make the parent accept frames for any MAC, even for the MAC of
// a pod whose netns has ended.
func TestPodCannotKeepTheAddressOfADeadPod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	b.node.MustRun(b.call("ADD", config))
	mac, err := net.ParseMAC(b.records()[0].MAC)
	if err != nil {
		t.Fatal(err)
	}
	hostile := testnet.NewNetns(t, "hostile")
	other := b.call("ADD", config)
	other.ContainerID, other.Netns = "c2", "/run/netns/"+hostile.Name
	b.node.MustRun(other)
	hostile.IP("maddress", "add", mac.String(), "dev", "net1")
	hostile.Inside(func() {
		nic, err := net.InterfaceByName("net1")
		if err != nil {
			t.Error(err)
			return
		}
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = unix.Close(s) })
		m := unix.PacketMreq{Ifindex: int32(nic.Index), Type: unix.PACKET_MR_UNICAST, Alen: 6}
		copy(m.Address[:], mac)
		if err := unix.SetsockoptPacketMreq(s, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
			t.Error(err)
		}
	})
	held := len(b.held())
	b.pod.Delete()
	b.node.MustRun(b.call("DEL", config))
	if now := len(b.held()); now != held/2 {
		t.Errorf("%d addresses of %d are held after the end of one pod of two", now, held)
	}
}
