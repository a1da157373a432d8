// Package cell writes values as the cells of tables, pictures and pages show them. The texts come
// from others, such as the pods that name their NICs: [Printable] makes one harmless.
//
//	cell.Age(50 * time.Hour) // "2d"
//	cell.Speed(400000)       // "400G"
package cell
