// Package files reads files and directories of a node for the packages of the doctor that collect
// facts. No file may block the reader, and the size of each is bounded.
package files
