package fact

// Fact is either a value that was read, or the reason why the value could not be read. The zero
// Fact means that nobody tried to read the value.
type Fact[T any] struct {
	Value  T      `json:"value"`
	Source string `json:"source,omitempty"` // the file, netlink request or API object
	Error  string `json:"error,omitempty"`  // why Value was not read; empty if it was
}

// Known returns the fact that value was read from source.
func Known[T any](value T, source string) Fact[T] { return Fact[T]{Value: value, Source: source} }

// Failed returns the fact that a value could not be read from source because of err. err must not
// be nil.
func Failed[T any](source string, err error) Fact[T] {
	return Fact[T]{Source: source, Error: err.Error()}
}

// From returns [Known] if err is nil, and [Failed] otherwise.
func From[T any](value T, source string, err error) Fact[T] {
	if err != nil {
		return Failed[T](source, err)
	}
	return Known(value, source)
}

// OK reports whether the value was read.
func (f Fact[T]) OK() bool { return f.Source != "" && f.Error == "" }

// Asked reports whether a collector tried to read the value. If no collector did, the rule has
// nothing to judge. For example, when files are judged without a cluster, nobody reads facts about
// nodes.
func (f Fact[T]) Asked() bool { return f.Source != "" || f.Error != "" }

// Why returns why the value is missing.
func (f Fact[T]) Why() string {
	switch {
	case f.Error != "" && f.Source != "":
		return f.Source + ": " + f.Error
	case f.Error != "":
		return f.Error
	}
	return NotCollected
}

// NotCollected is the reason of a missing fact that no collector tried to read.
const NotCollected = "not collected"
