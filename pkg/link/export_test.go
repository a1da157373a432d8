package link

// For tests of the ways to a namespace that FindNetns takes only where a
// quicker one fails.
var (
	Scan         = scan
	OpenByHandle = openByHandle
	MountsOf     = mountsOf
)
