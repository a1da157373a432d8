package nlsocket

// GenericHeader is the header of a request of generic netlink.
var GenericHeader = genericHeader
