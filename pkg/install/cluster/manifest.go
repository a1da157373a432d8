package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/rail-cni/rail-cni/deployments/crds"
	"github.com/rail-cni/rail-cni/deployments/kustomize/base"
)

// definitionsOfPools are the files of whereabouts' CustomResourceDefinitions.
var definitionsOfPools = []string{"ippools", "nodeslicepools", "overlappingrangeipreservations"}

// Manifest has the settings in which the installed objects differ from
// deployments/kustomize/base.
type Manifest struct {
	Image       string // of the containers, with its tag; that of the base if it is ""
	Prefix      string // of the installed plugins' names
	Definitions bool   // add whereabouts' CustomResourceDefinitions
}

var (
	blanks      = regexp.MustCompile(`\s`)
	programName = regexp.MustCompile(`^([a-zA-Z0-9][a-zA-Z0-9_.-]*)?$`)
)

// Objects returns the objects' YAML, in the order in which they must be created.
func (m Manifest) Objects() ([]string, error) {
	if blanks.MatchString(m.Image) {
		return nil, fmt.Errorf("--image %q: an image's name has no blanks", m.Image)
	}
	if !programName.MatchString(m.Prefix) {
		return nil, fmt.Errorf("--prefix %q cannot begin the name of a program", m.Prefix)
	}
	var all []string
	if m.Definitions {
		for _, name := range definitionsOfPools {
			text, err := crds.Files.ReadFile(name + ".yaml")
			if err != nil {
				return nil, err
			}
			all = append(all, strings.TrimSpace(string(text)))
		}
	}
	for _, text := range base.Objects() {
		all = append(all, string(text))
	}
	return all, errors.Join(set(all, "image: ", m.Image, 2), set(all, "- --prefix=", m.Prefix, 1)) // the DaemonSet and the Deployment have an image
}

// set replaces the rest of each line that begins with at. It does nothing for
// an empty value.
func set(objects []string, at, value string, lines int) error {
	if value == "" {
		return nil
	}
	line := regexp.MustCompile(`(?m)^( +` + at + `).*$`)
	found := 0
	for i, text := range objects {
		found += len(line.FindAllString(text, -1))
		objects[i] = line.ReplaceAllStringFunc(text, func(old string) string { return line.FindStringSubmatch(old)[1] + value })
	}
	if found != lines {
		return fmt.Errorf("the manifest has %d lines with %q", found, at)
	}
	return nil
}
