package netns_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

func TestListenHearsOfLinksOfItsNamespaceOnly(t *testing.T) {
	n, other := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "other")
	told := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- n.Listen(ctx, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, func() { told <- struct{}{} })
	}()
	hears := func(what string, want bool, do func()) {
		t.Helper()
		for len(told) > 0 {
			<-told
		}
		do()
		select {
		case <-told:
			if !want {
				t.Errorf("%s was heard", what)
			}
		case <-time.After(300 * time.Millisecond):
			if want {
				t.Errorf("%s was not heard", what)
			}
		}
	}
	hears("silence", false, func() { time.Sleep(100 * time.Millisecond) })
	hears("a bridge", true, func() { n.IP("link", "add", "br0", "type", "bridge") })
	hears("another namespace's bridge", false, func() { other.IP("link", "add", "br0", "type", "bridge") })
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it does not end with its context")
	}
	const unknown = 27 // no kernel has a netlink family of this number
	if err := n.Listen(t.Context(), unknown, 1, func() {}); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Error(err)
	}
}
