// Package page makes HTML pages for people: [Report] of the findings and NICs of nodes, and
// [Measured] of what "railctl verify" has measured. [Topology] is the picture of a node, alone or
// in its report.
//
// A page is one file that needs no other. It loads nothing, has no script, and can be printed. A
// sign or a word has the same meaning as each color. Names and texts may come from a stranger:
// they are escaped, and have no control characters.
package page
