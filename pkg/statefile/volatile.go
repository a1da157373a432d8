package statefile

// Volatile makes d write without fsync on every file system. It has the same effect on directories
// that [Dir.Sub] opens below d later. It is for state that is worthless after a reboot, if the
// owner of the state recognizes a reboot without the help of this package. Call Volatile before d
// is used concurrently.
func (d *Dir) Volatile() { d.durable = false }
