package nlsocket

// GenericHeader returns the header of a request of generic netlink.
var GenericHeader = genericHeader
