package pciname

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
)

var update = flag.Bool("update", false, "write names.txt")

// The vendors whose NICs have RDMA, and which of their devices are NICs.
var vendors = map[string]*regexp.Regexp{
	"1077": regexp.MustCompile(`FastLinQ`),
	"1425": regexp.MustCompile(`^T6.* Unified Wire Ethernet`),
	"14e4": regexp.MustCompile(`NetXtreme-[CE]`),
	"15b3": regexp.MustCompile(`(?i)ConnectX|InfiniHost|integrated.* network controller`),
	"19e5": regexp.MustCompile(`RDMA Network Controller`),
	"1d0f": regexp.MustCompile(`Elastic`),
	"1dd8": regexp.MustCompile(`Ethernet Controller`),
	"1ded": regexp.MustCompile(`Elastic RDMA`),
	"8086": regexp.MustCompile(`^(Ethernet|Infrastructure Data Path).*(E8[0-9]{2}|X722|Function)`),
}

var (
	noNIC    = regexp.MustCompile(`Flash Recovery|Bridge|CAPI`)
	brackets = regexp.MustCompile(`\[(.*)\]`)
	chip     = regexp.MustCompile(`^MT\d+\S* (Family )?`)
)

// short returns the name that people use. For "MT2910 Family [ConnectX-7]" that is the name
// in brackets.
func short(vendor, name string) string {
	if vendor != "15b3" {
		return name
	}
	if m := brackets.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return chip.ReplaceAllString(name, "")
}

// tableOf returns the text of names.txt for a text of pci.ids.
func tableOf(ids string) string {
	version := "unknown"
	vendor := ""
	var lines []string
	for line := range strings.Lines(ids) {
		line = strings.TrimRight(line, "\n")
		switch id, name, _ := strings.Cut(line, "  "); {
		case strings.HasPrefix(line, "#\tVersion: "):
			version = strings.TrimPrefix(line, "#\tVersion: ")
		case strings.HasPrefix(line, "#"), strings.HasPrefix(line, "\t\t"), name == "":
		case !strings.HasPrefix(line, "\t"):
			vendor = id
		case vendors[vendor] != nil && vendors[vendor].MatchString(name) && !noNIC.MatchString(name):
			lines = append(lines, fmt.Sprintf("%s:%s %s\n", vendor, strings.TrimPrefix(id, "\t"), short(vendor, name)))
		}
	}
	return fmt.Sprintf(header, version) + strings.Join(lines, "")
}

// header has the version of the database, and names one of the two licenses under which the
// database may be used.
const header = `# From pci.ids, version %s, of the PCI ID Project (https://pci-ids.ucw.cz). Written by go generate.
#
# Copyright Martin Mares and Albert Pool. Used under the 3-clause BSD license:
#
# Redistribution and use in source and binary forms, with or without modification, are permitted
# provided that the following conditions are met:
#
# 1. Redistributions of source code must retain the above copyright notice, this list of conditions
#    and the following disclaimer.
# 2. Redistributions in binary form must reproduce the above copyright notice, this list of
#    conditions and the following disclaimer in the documentation and/or other materials provided
#    with the distribution.
# 3. Neither the name of the copyright holder nor the names of its contributors may be used to
#    endorse or promote products derived from this software without specific prior written
#    permission.
#
# THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR
# IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND
# FITNESS FOR A PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR
# CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
# DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE,
# DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER
# IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT
# OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
#
`

// firstLine returns the first line, which has the version of the database.
func firstLine(text string) string { line, _, _ := strings.Cut(text, "\n"); return line }

func TestNamesAreThoseOfThePackage(t *testing.T) {
	path := cmp.Or(os.Getenv("RAIL_CNI_DEBIAN_PCI_IDS"), "../../bin/tools/pci.ids")
	need.NoError(t, need.Built(path, "test"))
	ids, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := tableOf(string(ids))
	if *update {
		if err := os.WriteFile("names.txt", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		names = want
	}
	if firstLine(names) == firstLine(want) {
		if names != want {
			t.Error("names.txt is not what the package has: run go generate ./pkg/pciname")
		}
		return
	}
	// Debian has another version here: it may have other names, and has no fewer devices.
	for id := range table() {
		vendor, device, _ := strings.Cut(id, ":")
		if !regexp.MustCompile(`(?ms)^` + vendor + ` .*?^\t` + device + ` `).Match(ids) {
			t.Errorf("the package has no %s", id)
		}
	}
}

func TestNames(t *testing.T) {
	for id, want := range map[string]string{
		"15b3:1021": "ConnectX-7", "15b3:101e": "ConnectX Family mlx5Gen Virtual Function", "15b3:a2dc": "BlueField-3 integrated ConnectX-7 network controller",
		"8086:1592": "Ethernet Controller E810-C for QSFP", "1d0f:efa1": "Elastic Fabric Adapter (EFA)", "14e4:1750": "BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb/100Gb/200Gb Ethernet",
		"15b3:ffff": "", ":": "", "#:": "",
	} {
		vendor, device, _ := strings.Cut(id, ":")
		if have := Of(vendor, device); have != want {
			t.Errorf("%s is %q, not %q", id, have, want)
		}
	}
	if n := len(table()); n < 150 || n > 1000 {
		t.Errorf("%d names", n)
	}
}
