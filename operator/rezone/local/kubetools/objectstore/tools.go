//go:build tools

// Package objectstoretool pins gofakes3, the object store of the tests of bulk jobs. A module of its own, as Helm's.
package objectstoretool

import _ "github.com/johannesboyne/gofakes3/cmd/gofakes3"
