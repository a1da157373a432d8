package fact

// Pod has the facts about a pod that holds a NIC.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// Containers are the pod's running containers.
	Containers Fact[[]Container] `json:"containers"`
	Interfaces Fact[[]Interface] `json:"interfaces"`
	// Devices are the ports of the RDMA devices that are visible in the pod's netns.
	Devices Fact[[]Port] `json:"devices"`
	// GPUs are the PCI addresses of the GPUs that the pod's containers have.
	GPUs Fact[[]string] `json:"gpus"`
	// Status is Multus' annotation network-status, as JSON.
	Status Fact[string] `json:"networkStatus"`
}

// Object returns the object of findings about the pod.
func (p *Pod) Object() string { return "pod " + p.Namespace + "/" + p.Name }

// Container is a container of a pod.
type Container struct {
	Name         string            `json:"name"`
	Memlock      Memlock           `json:"memlock"`
	UID          int               `json:"uid"`                   // the user of the container's first process
	Capabilities uint64            `json:"capabilities"`          // the effective capabilities of the first process
	Permitted    uint64            `json:"permittedCapabilities"` // the bounding set: the capabilities that files in the image could have
	Env          map[string]string `json:"env,omitempty"`         // only the variables of NCCL, UCX, NVSHMEM, GLOO and rail-cni
	CharDevices  []string          `json:"charDevices,omitempty"` // the paths below /dev/infiniband
}

// Interface is an interface of a pod.
type Interface struct {
	Name    string `json:"name"`
	NIC     string `json:"nic,omitempty"` // the NIC of the host that was lent as this interface, or on which this interface lies
	Rail    *int   `json:"rail,omitempty"`
	Up      bool   `json:"up"`
	Carrier bool   `json:"carrier"`
	// RDMA has the names that the NIC's RDMA devices have in the pod.
	RDMA      []string `json:"rdma,omitempty"`
	MTU       int      `json:"mtu"`
	Addresses []string `json:"addresses,omitempty"` // with prefix lengths
	// ARPIgnore and RPFilter are the effective values: the kernel uses the larger of the
	// interface's value and the value of "all".
	ARPIgnore int `json:"arpIgnore"`
	RPFilter  int `json:"rpFilter"`
}
