package diagnose

import "testing"

func TestFilesOfDevices(t *testing.T) {
	for name, want := range map[string]bool{"/dev/stdout": true, "/dev/../dev/none": true, "/proc/self/fd/2": true, "/dev/shm/none": false, "none": false, "/none/none": false} {
		if isDevice(name) != want {
			t.Errorf("%s is a device: %v", name, !want)
		}
	}
}
