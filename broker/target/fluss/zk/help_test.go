package zk

import "github.com/go-zookeeper/zk"

type conn = zk.Conn

var worldACL = zk.WorldACL(zk.PermAll)
