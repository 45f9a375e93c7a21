//go:build !linux

package env

import "syscall"

func procAttr() *syscall.SysProcAttr { return nil }
