package rdma

import ("testing";"os";"fmt";"github.com/vishvananda/netlink/nl";"github.com/rail-cni/rail-cni/pkg/link")

func TestRecord(t *testing.T) {
	if os.Getenv("RAIL_CNI_RIG")=="" { t.Skip() }
	ns,err:=link.CurrentNetns(); if err!=nil {t.Fatal(err)}
	c,err:=Open(ns); if err!=nil {t.Fatal(err)}
	show:=func(n string, m [][]byte, err error){ fmt.Printf("REC %s %v\n",n,err); for _,x:=range m { fmt.Printf("REC   %x\n",x)} }
	c.in(func() error {
		m,err:=c.request(nl.RDMA_NLDEV_CMD_GET,0,deviceAttr(3)); show("device",m,err)
		m,err=c.request(cmdPortGet,0,deviceAttr(3),portAttr(1)); show("port",m,err)
		m,err=c.request(cmdGetCharDev,0,deviceAttr(3),textAttr(attrCharType,"uverbs")); show("uverbs",m,err)
		m,err=c.request(cmdGetCharDev,0,deviceAttr(3),textAttr(attrCharType,"umad"),portAttr(1)); show("umad",m,err)
		m,err=c.request(cmdGetCharDev,0,deviceAttr(3),textAttr(attrCharType,"nonesuch")); show("nochar",m,err)
		m,err=c.request(nl.RDMA_NLDEV_CMD_STAT_GET,0,deviceAttr(3),portAttr(1)); show("stats",m,err)
		m,err=c.request(nl.RDMA_NLDEV_CMD_SYS_GET,0); show("mode",m,err)
		m,err=c.request(nl.RDMA_NLDEV_CMD_GET,0,deviceAttr(99)); show("nodev",m,err)
		m,err=c.request(cmdPortGet,0,deviceAttr(3),portAttr(9)); show("noport",m,err)
		m,err=c.request(nl.RDMA_NLDEV_CMD_STAT_GET,0,deviceAttr(3),portAttr(9)); show("nostat",m,err)
		m,err=c.request(63,0,deviceAttr(3)); show("nocmd",m,err)
		return nil
	})
	d,err:=c.ByIndex(3); fmt.Printf("REC %+v %v\n",d,err)
	g,_:=os.ReadFile("/sys/class/infiniband/"+d.Name+"/node_guid"); fmt.Printf("REC %s\n",g)
	g,_=os.ReadFile("/sys/class/infiniband/"+d.Name+"/sys_image_guid"); fmt.Printf("REC %s\n",g)
	t1,err:=c.GIDs(d,1); fmt.Printf("REC %+v %v\n",t1,err)
}
