// Package specs runs the specs of the CNI project's host-device and macvlan against our
// programs: the suites of containernetworking/plugins v1.10.0, without the tests of functions that
// a program does not have. An adapter (testdata) stands in for the plugin's code, and executes a
// program. The specs that differ on purpose are listed with their reasons.
package specs
