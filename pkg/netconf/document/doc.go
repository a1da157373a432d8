// Package document reads a network configuration as a JSON document, whatever plugin it is for: with errors in the terms
// of its author, with a limit of its size, and with the keys of a call that no author has written.
//
//	var conf struct {
//		Name string `json:"name"`
//	}
//	err := document.Decode(stdin, &conf, "the network configuration")
package document
