package env

import "syscall"

// procAttr makes the kernel end the server when the thread that started it is gone,
// so that a killed test binary leaves none behind.
func procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
