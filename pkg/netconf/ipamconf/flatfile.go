package ipamconf

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// fillFromFlatFile finds the flat file, and fills the keys that are empty in w from that file. It
// returns the path of the file, or "" if there is none.
func (w *whereaboutsIPAM) fillFromFlatFile(places []string) (string, error) {
	if w.ConfigurationPath != "" {
		places = append([]string{w.ConfigurationPath}, places...)
	}
	for _, path := range places {
		data, err := readFlatFile(path)
		if err != nil {
			return "", err
		}
		if data == nil {
			continue
		}
		var flat whereaboutsIPAM
		if err := document.Decode(data, &flat, "the flat file "+path); err != nil {
			return "", err
		}
		w.fill(&flat)
		return path, nil
	}
	return "", nil
}

// readFlatFile returns nil if there is no such file. A directory counts as
// missing: "configuration_path" also names the directory of "nodename".
func readFlatFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, nil
	case err == nil && info.IsDir():
		return nil, nil
	}
	var data []byte
	if err == nil {
		data, err = nodefile.ReadFile(path)
	}
	if err != nil {
		return nil, failure.From(err, failure.IO, "flat file %s", path).Cure("make the file readable, or remove it")
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// FlatFiles returns the flat files at the paths, for [nodefile.File.VetKubeconfig].
func FlatFiles(paths ...string) nodefile.FlatFiles {
	return nodefile.FlatFiles{Paths: paths, Names: func(file, kubeconfig string) bool {
		data, _ := readFlatFile(file) // nil, which is not JSON, if the file is missing or cannot be read
		var flat whereaboutsIPAM
		return document.Decode(data, &flat, file) == nil && flat.Kubernetes.Kubeconfig == kubeconfig
	}}
}

// FlatFilesWith returns the flat files that may name a kubeconfig: the flat files of whereabouts'
// installations, and the file that a network names, if the node file permits that path.
func FlatFilesWith(n *nodefile.File, named string) nodefile.FlatFiles {
	files := WhereaboutsFlatFiles()
	if named != "" && n.OpensPath(nodefile.KeyFlatFile, named) {
		files = append([]string{named}, files...)
	}
	return FlatFiles(files...)
}

// fill fills the keys that are empty in w from the flat file. It leaves out the key whether ranges
// overlap, because false cannot be distinguished from a missing key.
func (w *whereaboutsIPAM) fill(flat *whereaboutsIPAM) {
	or(&w.Range, flat.Range)
	if !w.RangeStart.addr.IsValid() {
		w.RangeStart = flat.RangeStart
	}
	if !w.RangeEnd.addr.IsValid() {
		w.RangeEnd = flat.RangeEnd
	}
	orList(&w.Exclude, flat.Exclude)
	orList(&w.IPRanges, flat.IPRanges)
	or(&w.Gateway, flat.Gateway)
	or(&w.Allocation, flat.Allocation)
	w.AllowGateway = w.AllowGateway || flat.AllowGateway
	orList(&w.Routes, flat.Routes)
	fillDNS(&w.DNS, flat.DNS)
	orList(&w.Addresses, flat.Addresses)
	or(&w.NetworkName, flat.NetworkName)
	or(&w.NodeSliceSize, flat.NodeSliceSize)
	if w.BlockSize == 0 {
		w.BlockSize = flat.BlockSize
	}
	or(&w.Store, flat.Store)
	or(&w.Kubernetes.Kubeconfig, flat.Kubernetes.Kubeconfig)
	or(&w.ConfigurationPath, flat.ConfigurationPath)
	or(&w.LogFile, flat.LogFile)
	or(&w.LogLevel, flat.LogLevel)
}

func fillDNS(dns *types.DNS, flat types.DNS) {
	orList(&dns.Nameservers, flat.Nameservers)
	or(&dns.Domain, flat.Domain)
	orList(&dns.Search, flat.Search)
	orList(&dns.Options, flat.Options)
}

func or(value *string, fallback string) {
	if *value == "" {
		*value = fallback
	}
}

func orList[T any](list *[]T, fallback []T) {
	if len(*list) == 0 {
		*list = fallback
	}
}
