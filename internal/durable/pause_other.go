//go:build !unix

package durable

func stopSelf() {} // nothing stops a process here
