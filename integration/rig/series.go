package rig

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// Kinds of NICs.
const (
	fakeNICs = "fakerdma" // of module/, with RDMA devices
	realNICs = "e1000e"   // QEMU's, with the kernel's driver
)

// series is a kernel that the rig can run.
type series struct {
	linux   string         // its name: the value of RIG
	image   *regexp.Regexp // its packages, with the version and the part of it that grows
	arch    arch           // of its machines
	nics    string         // the kind of its machines' NICs, also QEMU's name of a real one
	sources []string       // lines of sources.list(5); none for the machine's own
}

// newest is the series of the newest kernel that Debian has, whichever that is.
const newest = "newest"

// allSeries has the usual series first. Debian's "cloud" flavor has no RDMA
// core.
var allSeries = []series{
	{linux: "6.12", image: regexp.MustCompile(`^linux-image-(6\.12\.(\d+)\+deb\d+-amd64)$`), arch: amd64, nics: fakeNICs},
	{
		linux: "6.18", image: regexp.MustCompile(`^linux-image-(6\.18\.(\d+)\+deb\d+-amd64)$`), arch: amd64, nics: realNICs,
		sources: debian("debian trixie-backports"),
	},
	{
		linux: newest, image: regexp.MustCompile(`^linux-image-(([\d.]+)\+deb\d+-amd64)$`), arch: amd64, nics: realNICs,
		sources: debian("debian trixie-backports"),
	},
	{linux: "6.1", image: regexp.MustCompile(`^linux-image-(6\.1\.0-(\d+)-amd64)$`), arch: amd64, nics: realNICs},
	{
		linux: "5.10", image: regexp.MustCompile(`^linux-image-(5\.10\.0-(\d+)-amd64)$`), arch: amd64, nics: realNICs,
		sources: debian("debian bullseye", "debian-security bullseye-security"),
	},
	{
		linux: "arm64", image: regexp.MustCompile(`^linux-image-(6\.12\.(\d+)\+deb\d+-arm64)$`), arch: arm64, nics: realNICs,
		sources: debian("debian bookworm", "debian-security bookworm-security"),
	},
}

// debian returns the lines of sources.list(5) for these archives of Debian, each with its
// suite.
func debian(archives ...string) (lines []string) {
	for _, archive := range archives {
		lines = append(lines, "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/"+archive+" main")
	}
	return lines
}

// seriesOf returns the series with this name, the usual one for "".
func seriesOf(linux string) (series, error) {
	if linux == "yes" { // of "make crash RIG=yes", the default
		linux = ""
	}
	var names []string
	for _, s := range allSeries {
		if s.linux == cmp.Or(linux, allSeries[0].linux) {
			return s, nil
		}
		names = append(names, s.linux)
	}
	return series{}, fmt.Errorf("RIG=%q is no kernel of the rig: it has %s", linux, strings.Join(names, ", "))
}
