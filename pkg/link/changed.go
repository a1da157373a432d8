package link

import (
	"fmt"
)

// Changed is a setting of a NIC that could not be restored, and the reason.
type Changed struct {
	Setting string
	Err     error // nil if the kernel accepted the setting, but reports another value
}

func (c Changed) String() string {
	if c.Err == nil {
		return c.Setting
	}
	return fmt.Sprintf("%s: %v", c.Setting, c.Err)
}
