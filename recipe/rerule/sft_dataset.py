"""The name under which configurations load stage 1's data set; it stands in `training.sft_dataset`."""

from recipe.rerule.training.sft_dataset import SFTDataset as SFTDataset
