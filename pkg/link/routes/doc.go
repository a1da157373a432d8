// Package routes reads the routes of a namespace in the kernel's own form, with their nexthops and nexthop objects.
// The result has every attribute, so that a route can be sent back to the kernel unchanged.
package routes
