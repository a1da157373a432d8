// Package fact has the facts of a node or of a cluster: the JSON document that the doctor judges.
//
// Each [Fact] has its source; one that could not be read has the error. [Decode] reads a document,
// which may come from a stranger. The methods of the facts only read them: what is good or bad is
// for rules to say. The package imports nothing of the project.
package fact
