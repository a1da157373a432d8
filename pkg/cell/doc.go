// Package cell returns values as texts for the cells of tables, pictures and pages. The
// values may come from others, for example from pods that name their NICs. [Printable]
// makes such a text harmless.
//
//	cell.Age(50 * time.Hour) // "2d"
//	cell.Speed(400000)       // "400G"
package cell
