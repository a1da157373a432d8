// Package page makes HTML pages for people. [Report] makes a page about the findings and the NICs
// of nodes. [Measured] makes a page about the measurements of "railctl verify". [Topology] draws
// the picture of a node, which can stand alone or in the node's report.
//
// A page is one file that needs no other files. It loads nothing, has no script, and can be
// printed. Wherever a color has a meaning, a sign or a word has the same meaning. Names and texts
// may come from a stranger. So they are escaped, and their control characters are removed.
package page
