// Package facts has what the tests of package kernels found out on each kernel of the
// rig: a file for each, which `make kernels-table` writes, and the table in
// docs/reference/kernels.md that is made of them. The tests fail on a kernel that does
// otherwise than its file says.
package facts
