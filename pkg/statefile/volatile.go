package statefile

// Volatile makes d, and directories that [Dir.Sub] opens below it from now on,
// write without fsync on every file system. It is for state that is worthless
// after a reboot, and whose owner recognizes a reboot by itself. Call it before
// d is used concurrently.
func (d *Dir) Volatile() { d.durable = false }
