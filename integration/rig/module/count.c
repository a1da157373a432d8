// SPDX-License-Identifier: GPL-2.0
/*
 * The fault of kernels without 23f00807619d ("rtnetlink: Allocate vfinfo size for VF GUIDs when
 * supported", 6.15): they count no room for the GUIDs of VFs in an answer about a netdev, so that
 * one about many of them is refused with EMSGSIZE.
 */
#include <linux/if_link.h>
#include <linux/kprobes.h>
#include <linux/moduleparam.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/netlink.h>

#include "fakerdma.h"

static bool vf_guids_uncounted;
module_param(vf_guids_uncounted, bool, 0444);
MODULE_PARM_DESC(vf_guids_uncounted, "count no room for the GUIDs of VFs, as kernels before 6.15");

/* if_nlmsg_size(dev, ext_filter_mask) begins: notes how much less it is to return. */
static int fk_counting(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct net_device *nd = (struct net_device *)regs_get_kernel_argument(regs, 0);
	u32 mask = regs_get_kernel_argument(regs, 1);
	size_t *less = (size_t *)ri->data;

	*less = 0;
	if (nd->dev.parent && (mask & RTEXT_FILTER_VF) && nd->netdev_ops->ndo_get_vf_guid)
		*less = dev_num_vf(nd->dev.parent) * 2 * nla_total_size(sizeof(struct ifla_vf_guid));
	return 0;
}

static int fk_counted(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	regs_set_return_value(regs, regs_return_value(regs) - *(size_t *)ri->data);
	return 0;
}

static struct kretprobe fk_count = {
	.kp.symbol_name = "if_nlmsg_size",
	.entry_handler = fk_counting,
	.handler = fk_counted,
	.data_size = sizeof(size_t),
};

int fk_count_init(void)
{
	return vf_guids_uncounted ? register_kretprobe(&fk_count) : 0;
}

void fk_count_exit(void)
{
	if (vf_guids_uncounted)
		unregister_kretprobe(&fk_count);
}
