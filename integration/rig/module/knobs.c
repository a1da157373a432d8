// SPDX-License-Identifier: GPL-2.0
/*
 * Files in the directory of a function in sysfs, by which a test changes the NIC from
 * the host, wherever its netdev and RDMA device are. They are write-only, but for dscp:
 *
 *   recreate_rdma, recreate_netdev  anything: the driver makes it anew
 *   carrier        1 or 0
 *   speed          of the netdev, in Mbit/s
 *   port_state     of the RDMA port: DOWN, INIT, ARMED, ACTIVE; auto is the netdev's.
 *                  On InfiniBand DOWN pulls the cable, and auto plugs it in
 *   port_counter   "np_cnp_sent 42"
 *   refuse_gids    1 or 0: the port takes no further GIDs
 *   pkeys          the P_Key table of an InfiniBand port, as its subnet manager sets it: "0xffff 0x8001"
 *   lid            the LID of an InfiniBand port, as its subnet manager sets it
 *   guid           of an HCA: that of the RDMA device that is made next
 *   deaf           1 or 0: an InfiniBand port drops management packets, as if its firmware hung
 *   dscp           the priorities that the hardware gives DSCP values: "10:3 "
 *
 * A device that is made anew has forgotten them.
 */
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>

#include "fakerdma.h"

static ssize_t recreate_rdma_store(struct device *dev, struct device_attribute *a,
				   const char *buf, size_t count)
{
	int err = fk_rdma_renew(dev_get_drvdata(dev));

	return err ?: count;
}
static DEVICE_ATTR_WO(recreate_rdma);

static ssize_t recreate_netdev_store(struct device *dev, struct device_attribute *a,
				     const char *buf, size_t count)
{
	int err = fk_netdev_renew(dev_get_drvdata(dev));

	return err ?: count;
}
static DEVICE_ATTR_WO(recreate_netdev);

static ssize_t carrier_store(struct device *dev, struct device_attribute *a,
			     const char *buf, size_t count)
{
	struct fk_nic *nic = dev_get_drvdata(dev);
	bool on;
	int err = kstrtobool(buf, &on);

	if (!err && !nic->ndev)
		err = -ENODEV;
	if (err)
		return err;
	if (on)
		netif_carrier_on(nic->ndev);
	else
		netif_carrier_off(nic->ndev);
	return count;
}
static DEVICE_ATTR_WO(carrier);

static ssize_t speed_store(struct device *dev, struct device_attribute *a,
			   const char *buf, size_t count)
{
	struct fk_nic *nic = dev_get_drvdata(dev);
	int err = kstrtou32(buf, 10, &nic->settings.speed);

	return err ?: count;
}
static DEVICE_ATTR_WO(speed);

static ssize_t port_state_store(struct device *dev, struct device_attribute *a,
				const char *buf, size_t count)
{
	u32 port;
	struct fk_rdma *rdma = fk_rdma_of(dev_get_drvdata(dev), &port);
	int err = rdma ? fk_set_port_state(rdma, port, buf) : -ENODEV;

	return err ?: count;
}
static DEVICE_ATTR_WO(port_state);

static ssize_t port_counter_store(struct device *dev, struct device_attribute *a,
				  const char *buf, size_t count)
{
	u32 port;
	struct fk_rdma *rdma = fk_rdma_of(dev_get_drvdata(dev), &port);
	char name[32];
	u64 value;
	int err;

	if (sscanf(buf, "%31s %llu", name, &value) != 2)
		return -EINVAL;
	err = rdma ? fk_set_port_counter(rdma, port, name, value) : -ENODEV;
	return err ?: count;
}
static DEVICE_ATTR_WO(port_counter);

static ssize_t refuse_gids_store(struct device *dev, struct device_attribute *a,
				 const char *buf, size_t count)
{
	u32 port;
	struct fk_rdma *rdma = fk_rdma_of(dev_get_drvdata(dev), &port);
	bool refuse;
	int err = kstrtobool(buf, &refuse);

	if (!err && !rdma)
		err = -ENODEV;
	if (err)
		return err;
	fk_refuse_gids(rdma, port, refuse);
	return count;
}
static DEVICE_ATTR_WO(refuse_gids);

static ssize_t pkeys_store(struct device *dev, struct device_attribute *a,
			   const char *buf, size_t count)
{
	u32 port;
	struct fk_rdma *rdma = fk_rdma_of(dev_get_drvdata(dev), &port);
	int err = rdma ? fk_set_pkeys(rdma, port, buf) : -ENODEV;

	return err ?: count;
}
static DEVICE_ATTR_WO(pkeys);

static ssize_t lid_store(struct device *dev, struct device_attribute *a,
			 const char *buf, size_t count)
{
	u32 port;
	struct fk_rdma *rdma = fk_rdma_of(dev_get_drvdata(dev), &port);
	u16 lid;
	int err = kstrtou16(buf, 0, &lid);

	if (!err)
		err = rdma ? fk_set_lid(rdma, port, lid) : -ENODEV;
	return err ?: count;
}
static DEVICE_ATTR_WO(lid);

static ssize_t guid_store(struct device *dev, struct device_attribute *a,
			  const char *buf, size_t count)
{
	struct fk_nic *nic = dev_get_drvdata(dev);
	int err = kstrtou64(buf, 16, &nic->guid);

	return err ?: count;
}
static DEVICE_ATTR_WO(guid);

static ssize_t deaf_store(struct device *dev, struct device_attribute *a,
			  const char *buf, size_t count)
{
	u32 port;
	struct fk_rdma *rdma = fk_rdma_of(dev_get_drvdata(dev), &port);
	bool deaf;
	int err = kstrtobool(buf, &deaf);

	if (!err)
		err = rdma ? fk_set_deaf(rdma, port, deaf) : -ENODEV;
	return err ?: count;
}
static DEVICE_ATTR_WO(deaf);

static ssize_t dscp_show(struct device *dev, struct device_attribute *a, char *buf)
{
	struct fk_nic *nic = dev_get_drvdata(dev);
	int i, n = 0;

	for (i = 0; i < ARRAY_SIZE(nic->settings.dscp); i++)
		if (nic->settings.dscp[i])
			n += sysfs_emit_at(buf, n, "%d:%d ", i, nic->settings.dscp[i]);
	return n + sysfs_emit_at(buf, n, "\n");
}
static DEVICE_ATTR_RO(dscp);

static struct attribute *fk_device_attrs[] = {
	&dev_attr_recreate_rdma.attr, &dev_attr_recreate_netdev.attr,
	&dev_attr_carrier.attr, &dev_attr_speed.attr, &dev_attr_port_state.attr,
	&dev_attr_port_counter.attr, &dev_attr_refuse_gids.attr,
	&dev_attr_pkeys.attr, &dev_attr_lid.attr, &dev_attr_guid.attr,
	&dev_attr_deaf.attr, &dev_attr_dscp.attr, NULL
};
static const struct attribute_group fk_device_group = { .attrs = fk_device_attrs };
const struct attribute_group *fk_device_groups[] = { &fk_device_group, NULL };
