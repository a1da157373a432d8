package attacker

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rail-cni/rail-cni/integration/mutate"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// settings are the attacks of package mutate's table that need a NIC of
// hardware, except those whose effects are known to stay.
func settings() (all []attack) {
	for _, m := range mutate.Table {
		if m.Rig && m.Fate == mutate.Restored {
			all = append(all, attack{name: "setting: " + m.Name, weight: 2, rig: true, do: func(_ *attacker, link target) error {
				return mutation(m, link.name)
			}})
		}
	}
	return all
}

// mutation applies a mutation to an interface of the program's namespace.
func mutation(m mutate.Mutation, name string) (err error) {
	defer func() {
		if refused, is := recover().(refusal); is {
			err = errors.New(string(refused))
		}
	}()
	ns := testnet.Current(failing{})
	defer ns.Close()
	return m.Set(ns, name)
}

// failing is a testing.TB whose failures are panics with a refusal.
type failing struct{ testing.TB }

type refusal string

func (failing) Helper()                        {}
func (failing) Fatal(args ...any)              { panic(refusal(fmt.Sprint(args...))) }
func (failing) Fatalf(text string, arg ...any) { panic(refusal(fmt.Sprintf(text, arg...))) }
