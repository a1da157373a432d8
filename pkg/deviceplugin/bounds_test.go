package deviceplugin

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A node with many pods and devices has more than the 4 MiB that gRPC accepts.
func TestLargeListsOfPodsAreRead(t *testing.T) {
	n := newNode(t, "")
	n.start()
	const pods = 60
	for i := range pods {
		var ids []string
		for j := range 1000 {
			ids = append(ids, fmt.Sprintf("%0100d", j))
		}
		n.give(fmt.Sprint("pod", i), map[string][]string{"example.com/rail": ids})
	}
	p := New(n.options)
	defer p.containers.Disconnect()
	list, err := p.containers.Containers(t.Context())
	// On a busy machine the fake kubelet takes longer to answer than a kubelet may take.
	for end := time.Now().Add(time.Minute); status.Code(err) == codes.DeadlineExceeded && time.Now().Before(end); {
		list, err = p.containers.Containers(t.Context())
	}
	if err != nil || len(list) != pods {
		t.Errorf("%d containers, %v", len(list), err)
	}
}
