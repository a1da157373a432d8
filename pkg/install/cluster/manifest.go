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

// Manifest has the settings that may differ between the installed objects and
// deployments/kustomize/base.
type Manifest struct {
	Image       string // the image of the containers, with its tag; "" for the image in the base
	Prefix      string // the prefix of the names of the installed plugins
	Definitions bool   // whether to add whereabouts' CustomResourceDefinitions
}

var (
	blanks      = regexp.MustCompile(`\s`)
	programName = regexp.MustCompile(`^([a-zA-Z0-9][a-zA-Z0-9_.-]*)?$`)
)

// Objects returns the objects' YAML, in the order in which they must be created.
func (m Manifest) Objects() ([]string, error) {
	if blanks.MatchString(m.Image) {
		return nil, fmt.Errorf("--image is %q; the name of an image must not contain blanks", m.Image)
	}
	if !programName.MatchString(m.Prefix) {
		return nil, fmt.Errorf("--prefix is %q, which cannot be the beginning of a program's name", m.Prefix)
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
	return all, errors.Join(set(all, "image: ", m.Image, 2), set(all, "- --prefix=", m.Prefix, 1)) // two lines: the DaemonSet and the Deployment have an image
}

// set replaces the rest of each line that begins with prefix by value. lines is the number of such
// lines. If value is empty, set does nothing.
func set(objects []string, prefix, value string, lines int) error {
	if value == "" {
		return nil
	}
	line := regexp.MustCompile(`(?m)^( +` + prefix + `).*$`)
	found := 0
	for i, text := range objects {
		found += len(line.FindAllString(text, -1))
		objects[i] = line.ReplaceAllStringFunc(text, func(old string) string { return line.FindStringSubmatch(old)[1] + value })
	}
	if found != lines {
		return fmt.Errorf("the manifest has %d lines with %q", found, prefix)
	}
	return nil
}
