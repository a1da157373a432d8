package ipamconf

// HasVariables is for tests.
func (t *Template) HasVariables() bool { return t.rail || t.node }
