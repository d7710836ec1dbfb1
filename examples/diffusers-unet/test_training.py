import torch
from diffusers import DDPMScheduler, UNet2DModel

DOWN, UP = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")


def test_training_step(gpuperf):
    torch.manual_seed(0)
    device = gpuperf.torch_device  # the GPU, or the CPU where there is none
    blocks = {"down_block_types": DOWN, "up_block_types": UP, "block_out_channels": (32, 64)}
    model = UNet2DModel(sample_size=32, norm_num_groups=8, **blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    clean, noise = torch.rand(2, 4, 3, 32, 32, device=device)
    times = torch.tensor([10, 200, 500, 900], device=device)
    noisy = DDPMScheduler(1000).add_noise(clean, noise, times)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def step():
        optimizer.zero_grad()
        with gpuperf.phase("forward"):
            loss = torch.nn.functional.mse_loss(model(noisy, times).sample, noise)
        with gpuperf.phase("backward"):
            loss.backward()
        with gpuperf.phase("optimizer"):
            optimizer.step()
        return loss

    gpuperf.measure(step, reset=lambda: model.load_state_dict(start))
