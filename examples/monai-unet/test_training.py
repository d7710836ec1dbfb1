import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet


def test_training_step(gpuperf):
    torch.manual_seed(0)
    device = gpuperf.torch_device  # the GPU, or the CPU where there is none
    model = UNet(3, 1, 3, channels=(16, 32, 64), strides=(2, 2), num_res_units=2).to(device)
    criterion = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    image = torch.rand(2, 1, 32, 32, 32, device=device)
    label = torch.randint(0, 3, image.shape, device=device)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def step():
        optimizer.zero_grad()
        with gpuperf.phase("forward"):
            loss = criterion(model(image), label)
        with gpuperf.phase("backward"):
            loss.backward()
        with gpuperf.phase("optimizer"):
            optimizer.step()
        return loss

    gpuperf.measure(step, reset=lambda: model.load_state_dict(start))
