package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

const (
	// dnsAddress is that of the cluster's DNS, which pods have in /etc/resolv.conf.
	dnsAddress = "10.96.0.10"
	dnsZone    = "cluster.local"
)

// serveDNS answers for services and their pods by their names in the zone [dnsZone], as the
// specification "DNS-Based Service Discovery" of Kubernetes has them, with A records only, and
// nothing else: nodes have no way out. It looks at the API server each time. It runs until stop
// is called.
func (c *Cluster) serveDNS() (stop func(), err error) {
	ns, err := netns.Open(namespace(c.holder.Pid(), "net"))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var conn net.PacketConn
	err = ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", dnsAddress+":53")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("DNS: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for query := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return // closed
			}
			question := string(query[:n])
			go func() {
				if answer, err := c.answer(ctx, []byte(question)); err == nil {
					_, _ = conn.WriteTo(answer, from) // the client asks again
				}
			}()
		}
	}()
	return func() { cancel(); _ = conn.Close() }, nil
}

// answer returns the answer to a query.
func (c *Cluster) answer(ctx context.Context, query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	q, err := parser.Question()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second) // a resolver asks again after five
	defer cancel()
	addresses, err := c.addressesOf(ctx, strings.ToLower(q.Name.String()))
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired},
		Questions: []dnsmessage.Question{q},
	}
	switch {
	case errors.Is(err, errNoName):
		m.RCode = dnsmessage.RCodeNameError
	case err != nil:
		m.RCode = dnsmessage.RCodeServerFailure
	case q.Type == dnsmessage.TypeA:
		for _, a := range addresses {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: a.As4()},
			})
		}
	}
	return m.Pack()
}

var errNoName = errors.New("there is no such name")

// addressesOf returns the addresses of SERVICE.NAMESPACE.svc.cluster.local., or of
// HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local., and errNoName where there are none.
func (c *Cluster) addressesOf(ctx context.Context, name string) (found []netip.Addr, err error) {
	name, ok := strings.CutSuffix(name, ".svc."+dnsZone+".")
	labels := strings.Split(name, ".")
	if !ok || len(labels) < 2 || len(labels) > 3 {
		return nil, errNoName
	}
	hostname := ""
	if len(labels) == 3 {
		hostname, labels = labels[0], labels[1:]
	}
	var service struct{ Spec struct{ ClusterIP string } }
	if err := c.into(ctx, "/api/v1/namespaces/"+url.PathEscape(labels[1])+"/services/"+url.PathEscape(labels[0]), &service); err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(service.Spec.ClusterIP); err == nil && hostname == "" { // else "None"
		return []netip.Addr{ip}, nil
	}
	var slices struct {
		Items []struct {
			AddressType string
			Endpoints   []struct {
				Addresses  []string
				Hostname   string
				Conditions struct{ Ready *bool }
			}
		}
	}
	const path = "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices?labelSelector=kubernetes.io/service-name=%s"
	if err := c.into(ctx, fmt.Sprintf(path, url.PathEscape(labels[1]), url.QueryEscape(labels[0])), &slices); err != nil {
		return nil, err
	}
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			if slice.AddressType != "IPv4" || e.Conditions.Ready != nil && !*e.Conditions.Ready || hostname != "" && e.Hostname != hostname {
				continue
			}
			for _, address := range e.Addresses {
				if ip, err := netip.ParseAddr(address); err == nil {
					found = append(found, ip)
				}
			}
		}
	}
	if len(found) == 0 {
		return nil, errNoName
	}
	return found, nil
}

// into reads an object of the API, and returns errNoName where there is none.
func (c *Cluster) into(ctx context.Context, path string, object any) error {
	code, answer, err := c.Admin().Get(ctx, path)
	switch {
	case err != nil:
		return err
	case code == 404:
		return errNoName
	case code != 200:
		return fmt.Errorf("GET %s: %d: %s", path, code, answer)
	}
	return json.Unmarshal(answer, object)
}
