// Package devinfo has the part of an attachment that writes the device information file of the
// interface for Multus (Device Information Specification). [Part] is released last. It never
// writes to an existing file, and never removes a file that it did not write.
//
// In a plan:
//
//	info := devinfo.Part{}
package devinfo
