// Package ipamconf is the "ipam" object of a network: the variables in it, such as ${rail}, whose values are those of
// one attachment, and the keys of whereabouts.
//
// A [Template] has the object before the variables are replaced; [Template.Expanded] returns what an IPAM plugin gets,
// which knows no rails. [Whereabouts] is what the plugin whereabouts reads of it, of CNI_ARGS and of its flat file. Both
// read ranges in the same way, so that a range is refused before an attachment needs it.
//
// To read the configuration of whereabouts:
//
//	conf, err := ipamconf.ParseWhereabouts(stdin, os.Getenv("CNI_ARGS"), ipamconf.WhereaboutsFlatFiles())
package ipamconf
