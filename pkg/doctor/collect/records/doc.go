// Package records reads the facts of the plugins' records on a node, and of what became of the
// attachments.
package records
