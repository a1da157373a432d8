package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file writes the image's bill of materials as SPDX 2.3 (ISO/IEC 5962) in
// JSON. Its source is the build information in each Go program: the linked
// modules, not those in go.mod. It depends only on the image, and on
// SOURCE_DATE_EPOCH if that is set.

type spdx struct {
	Version       string             `json:"spdxVersion"`
	License       string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []*spdxPackage     `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Version       string         `json:"versionInfo,omitempty"`
	FileName      string         `json:"packageFileName,omitempty"`
	Location      string         `json:"downloadLocation"`
	FilesAnalyzed bool           `json:"filesAnalyzed"`
	License       string         `json:"licenseDeclared"`
	Copyright     string         `json:"copyrightText"`
	Source        string         `json:"sourceInfo,omitempty"`
	Purpose       string         `json:"primaryPackagePurpose"`
	Checksums     []spdxChecksum `json:"checksums,omitempty"`
	References    []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	To      string `json:"relatedSpdxElement"`
}

// unsaid is SPDX's word for what is unknown.
const unsaid = "NOASSERTION"

// bill is the document under construction.
type bill struct {
	spdx
	byID map[string]*spdxPackage
}

// writeSBOM writes the bill of materials of an image with this digest, for the
// programs in dirs.
func writeSBOM(out, name, tag, imageDigest string, dirs []string) error {
	epoch, _ := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64) // 0 when it is not set
	b := &bill{byID: map[string]*spdxPackage{}, spdx: spdx{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + ":" + tag,
		Namespace: "https://github.com/rail-cni/rail-cni/spdx/" + strings.TrimPrefix(imageDigest, "sha256:"),
		Creation:  spdxCreation{Created: time.Unix(epoch, 0).UTC().Format(time.RFC3339), Creators: []string{"Tool: rail-cni-scripts-image"}},
	}}
	image := b.add(&spdxPackage{
		Name: name, Version: tag, License: "Apache-2.0", Purpose: "CONTAINER",
		Checksums:  []spdxChecksum{{"SHA256", strings.TrimPrefix(imageDigest, "sha256:")}},
		References: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:oci/rail-cni@" + strings.Replace(imageDigest, ":", "%3A", 1)}},
	}, "image")
	b.relate(b.ID, "DESCRIBES", image)
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := b.program(image, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	text, err := json.MarshalIndent(b.spdx, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// program adds a program and the modules that it was linked from.
func (b *bill) program(image, path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("what is %s made of? %w", path, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	arch := filepath.Base(filepath.Dir(path))
	id := b.add(&spdxPackage{
		Name: filepath.Base(path) + " (" + arch + ")", FileName: arch + "/" + filepath.Base(path), License: "Apache-2.0", Purpose: "APPLICATION",
		Source:    "built from " + info.Path + " with " + strings.Join(settings(info), " "),
		Checksums: []spdxChecksum{{"SHA256", strings.TrimPrefix(digest(text), "sha256:")}},
	}, "program-"+arch+"-"+filepath.Base(path))
	b.relate(image, "CONTAINS", id)
	modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		b.relate(id, "DEPENDS_ON", b.module(m))
	}
	return nil
}

// settings returns the build settings that decide what was built.
func settings(info *debug.BuildInfo) (list []string) {
	for _, s := range info.Settings {
		if slices.Contains([]string{"GOOS", "GOARCH", "CGO_ENABLED", "GOFIPS140"}, s.Key) {
			list = append(list, s.Key+"="+s.Value)
		}
	}
	return list
}

func (b *bill) module(m *debug.Module) string {
	p := &spdxPackage{
		Name: m.Path, Version: m.Version, License: unsaid, Purpose: "LIBRARY",
		References: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}},
	}
	if m.Sum != "" {
		p.Source = "go.sum " + m.Sum
	}
	return b.add(p, "module-"+m.Path+"-"+m.Version)
}

var notInID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// add adds a package once, and returns its ID.
func (b *bill) add(p *spdxPackage, id string) string {
	p.ID = "SPDXRef-" + notInID.ReplaceAllString(id, "-")
	if b.byID[p.ID] == nil {
		p.Location, p.Copyright = unsaid, unsaid
		b.byID[p.ID] = p
		b.Packages = append(b.Packages, p)
	}
	return p.ID
}

func (b *bill) relate(element, kind, to string) {
	b.Relationships = append(b.Relationships, spdxRelationship{element, kind, to})
}
