// SPDX-License-Identifier: GPL-2.0
/*
 * A client of the RDMA core that has a queue pair on each device, as nvme-rdma or
 * Lustre have on theirs. The core removes it when a device leaves the network
 * namespace.
 */
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "fakerdma.h"

static bool client;
module_param(client, bool, 0444);
MODULE_PARM_DESC(client, "a kernel client has a queue pair on each RDMA device");

/* The name that the core lists. Not this module's, which is a driver. */
#define FK_CLIENT "rig_storage"

struct fk_use {
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
};

static void fk_client_end(struct fk_use *use)
{
	if (!IS_ERR_OR_NULL(use->qp))
		ib_destroy_qp(use->qp);
	if (!IS_ERR_OR_NULL(use->cq))
		ib_free_cq(use->cq);
	if (!IS_ERR_OR_NULL(use->pd))
		ib_dealloc_pd(use->pd);
	kfree(use);
}

static struct ib_client fk_client;

static int fk_client_add(struct ib_device *d)
{
	struct fk_use *use = kzalloc(sizeof(*use), GFP_KERNEL);
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_UD,
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	int err;

	if (!use)
		return -ENOMEM;
	use->pd = __ib_alloc_pd(d, 0, FK_CLIENT);
	err = PTR_ERR_OR_ZERO(use->pd);
	if (err)
		goto fail;
	use->cq = __ib_alloc_cq(d, NULL, 2, 0, IB_POLL_DIRECT, FK_CLIENT);
	err = PTR_ERR_OR_ZERO(use->cq);
	if (err)
		goto fail;
	attr.send_cq = attr.recv_cq = use->cq;
	use->qp = ib_create_qp_kernel(use->pd, &attr, FK_CLIENT);
	err = PTR_ERR_OR_ZERO(use->qp);
	if (err)
		goto fail;
	ib_set_client_data(d, &fk_client, use);
	return 0;
fail:
	fk_client_end(use);
	return err;
}

static void fk_client_remove(struct ib_device *d, void *data)
{
	if (data)
		fk_client_end(data);
}

static struct ib_client fk_client = {
	.name = FK_CLIENT,
	.add = fk_client_add,
	.remove = fk_client_remove,
};

int fk_client_init(void)
{
	return client ? ib_register_client(&fk_client) : 0;
}

void fk_client_exit(void)
{
	if (client)
		ib_unregister_client(&fk_client);
}
