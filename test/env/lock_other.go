//go:build !unix

package env

import "errors"

func lockFile(string) (unlock func(), err error) {
	return nil, errors.New("no file locks on this system")
}
