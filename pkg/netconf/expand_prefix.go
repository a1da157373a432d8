package netconf

import (
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// setPrefix sets the keys of the node's prefix in an object whose variables are replaced.
func (t *template) setPrefix(ipam map[string]any, v Variables) error {
	prefix, err := t.nodePrefix(ipam, v)
	if err != nil {
		return err
	}
	set(ipam, keyRange, prefix.Prefix)
	set(ipam, keyStore, StoreLocal)
	if prefix.Gateway != "" {
		set(ipam, keyGateway, prefix.Gateway)
	}
	if len(prefix.Exclude) > 0 {
		set(ipam, keyExclude, prefix.Exclude)
	}
	if len(prefix.Routes) > 0 && t.get(keyRoutes) == nil {
		var routes []any
		for _, dst := range prefix.Routes {
			route := map[string]any{"dst": dst}
			if prefix.Gateway != "" {
				route["gw"] = prefix.Gateway
			}
			routes = append(routes, route)
		}
		set(ipam, keyRoutes, routes)
	}
	return nil
}

// nodePrefix returns the prefix that the key "prefix" names.
func (t *template) nodePrefix(ipam map[string]any, v Variables) (*NodePrefix, error) {
	if t.prefix == prefixOfNode {
		if v.Prefix == nil {
			return nil, failure.WithCure(failure.New(failure.InvalidConfig, `"prefix": "node": the node has no prefix for rail %d`, *v.Rail), `add it to "prefixes" in the node file`)
		}
		return v.Prefix, nil
	}
	expanded := template{ipam: ipam}
	text, _ := expanded.get(keyPrefix).(string)
	set(ipam, keyPrefix, text) // the network may write the key as "Prefix"
	pool := strings.TrimPrefix(text, prefixOfPool)
	if err := checkPool(pool); err != nil {
		return nil, err
	}
	if v.OfPool == nil {
		return nil, failure.New(failure.InvalidConfig, "%.80q: no pool of nv-ipam is known here", text)
	}
	prefix, err := v.OfPool(pool)
	if err != nil {
		return nil, failure.Wrap(err, failure.KindOf(err), `"prefix": %.80q`, text)
	}
	_, err = prefix.check()
	return prefix, failure.WithCure(failure.Wrap(err, failure.InvalidConfig, `"prefix": %.80q`, text), "correct the pool")
}

// checkPool returns an error for a name that no object in Kubernetes can have.
func checkPool(name string) error {
	valid := name != "" && len(name) <= 253 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
	})
	if valid {
		return nil
	}
	return failure.WithCure(failure.New(failure.InvalidConfig, `"prefix": %.80q is not the name of a CIDRPool`, prefixOfPool+name), `write it as "nv-ipam/rail-${rail}"`)
}
