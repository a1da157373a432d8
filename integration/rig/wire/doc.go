// Package wire is the protocol between guest and host: frames over a serial
// port, with the test's unchanged output and the guest's events.
package wire
