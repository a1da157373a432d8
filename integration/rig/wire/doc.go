// Package wire is how the guest talks to the host: over a serial port, in
// frames. A test's output goes through as it is, and the guest says what it
// does beside it.
package wire
