/** Parts of the pages that are loaded when they are shown first. */
import { t } from '../strings'
import { base } from './client'
import { awaited } from './waits'

/** Load a part. After an upgrade the server has other files: then the page loads again, and shows the same address. */
export async function part<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await awaited(load)
  } catch {
    if (!(await isUpgraded())) throw new Error(t.lostPart)
    location.reload()
    return new Promise(() => undefined)
  }
}

/** Whether the server now starts the pages with another script than this one. */
async function isUpgraded(): Promise<boolean> {
  const script = document.querySelector<HTMLScriptElement>('script[type=module][src]')
  const own = script && new URL(script.src).pathname.split('/').at(-1)
  if (!own) return false
  try {
    const answer = await fetch(`${base}/`, { cache: 'no-store' })
    return answer.ok && !(await answer.text()).includes(own)
  } catch {
    return false
  }
}
