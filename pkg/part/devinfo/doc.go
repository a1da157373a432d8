// Package devinfo has the part of an attachment that writes Multus' device
// information file of the interface (Device Information Specification). [Part]
// is the last to be released. It never writes to a file that exists, nor
// removes one that it did not write.
//
// In a plan:
//
//	info := devinfo.Part{}
package devinfo
